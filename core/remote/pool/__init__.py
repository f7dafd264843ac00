"""Several engines behind one front end, as one engine: which of them runs a request, changes that all of them make, and
what they report, merged."""
