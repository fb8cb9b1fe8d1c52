"""What runs on a stand-in host in place of dstack's shim and runner: standard library only.

It travels as one zip file that acts by the name it is called by. `README.md` beside this package has the contract.
"""
