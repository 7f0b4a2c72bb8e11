"""/v1/audio/transcriptions and /v1/audio/translations: multipart forms with audio in, transcripts
out."""
