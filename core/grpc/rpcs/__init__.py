"""The RPCs that have one request and one response: functions of the front end and the request's message."""
