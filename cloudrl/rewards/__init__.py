"""Reward functions of users: called on some rows as verl calls them, where they can harm nothing.

source      what is wrong with a function by its source: parameters, no `return`, imports
rows        rows of a data set, and answers to them: right ones, a wrong one, an empty one
runner      the child that loads the file and calls the function. Imports nothing of cloudrl
child       starts it in the sandbox
trial       what it has recorded
scores      of right, wrong and empty answers
verdict     what that means: what verl would fail with, what to look at, and what could not be told here
examine     all of it, for one function
"""
