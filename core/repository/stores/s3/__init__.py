"""Amazon S3 and storages that speak its protocol."""
