"""The types of the frames between a front end and the engine.

    front end -> engine              engine -> front end
    HELLO    version, memory         STATE     live, ready, phase
    REQUEST  an inference request;   RESPONSE  to a request; flags: final, failed
             flags: streamed, timed
    ACK      responses were taken
    CANCEL   a request; flags: why   RESULT    of a call
    CALL     another method
    RELEASE  memory of a response
    TRACED   an answer was sent

A frame's number is that of the request or the call; in RELEASE the offset in shared memory. The content of ACK is how
many responses of a streamed request the front end has passed on, in decimal digits. A timed request has after its
tensors the moment of its arrival: u64, monotonic nanoseconds. TRACED has the number of a
trace, and the front end's events as JSON: two lists of pairs of name and nanoseconds.
"""

VERSION = 5

HELLO, REQUEST, CANCEL, CALL, RELEASE, ACK, TRACED = range(1, 8)
STATE, RESPONSE, RESULT = range(16, 19)
TO_ENGINE = frozenset((HELLO, REQUEST, CANCEL, CALL, RELEASE, ACK, TRACED))
TO_FRONT_END = frozenset((STATE, RESPONSE, RESULT))

FINAL = 1
FAILED = 2
STREAMED = 1
TIMED = 2
