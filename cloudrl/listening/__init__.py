"""How every server of ours accepts connections. Standard library, Python 3.9: it runs on nodes as well.

acceptor     accepts, reads what a client sends first within limits, and hands over what is admitted
heads        the head of an HTTP request, and answers to those that are refused
web_pages    whether a web page may have sent a request
http_server  a thread for each admitted connection
joining      bytes both ways between two connections
"""
