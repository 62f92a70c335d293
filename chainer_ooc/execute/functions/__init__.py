"""What is known about a program's functions, and how one call of them is run again.

    prototype               which functions may run twice, draw or write; and copies of them
    recipe                  how a call is run once more, without any other effect
"""
