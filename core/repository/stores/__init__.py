"""Object stores as the downloader sees them, one package per storage, and their credentials."""
