"""The views of the v2 routes: functions of the front end and the WSGI environ that return a Reply."""
