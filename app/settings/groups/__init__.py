"""The options of the server, one group a file; each group is a base class of ServerSettings."""
