"""Load on a server and its results: the client, the requests, the measurements and the page of `trident bench`."""
