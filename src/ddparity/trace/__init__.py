"""The files of a trial: schema, writer (append-only, crash-safe), reader."""
