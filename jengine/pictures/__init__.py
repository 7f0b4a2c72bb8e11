"""Charts and pages that open offline: for the comparison with torch and for measurements."""
