"""Jobs that outlive their machines: what becomes of an attempt that has ended, and which job runs next. Pure.

    verdicts    the end of an attempt as Ray and the log tell it -> whose fault it was
    queue       `step(queue, event, now)` -> the next queue, and what is to be done: record, plan, submit, stop
    request     the request of an attempt that goes on from a step

The agent of rank 0 carries events and actions (`cloudrl.node.supervisor`), so it travels: standard library, Python 3.9.
"""
