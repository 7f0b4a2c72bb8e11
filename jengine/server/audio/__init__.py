"""/v1/audio/transcriptions and /v1/audio/translations: forms with audio in, what is said out."""
