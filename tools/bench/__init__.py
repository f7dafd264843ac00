"""Load on a server and what it shows: the client, the requests, the measurements and the page of `trident bench`."""
