"""Four daemons that serve one model together. The life of a request, each step with its module:

1. ``lb.service`` takes it, ``lb.policies`` picks a pair, ``lb.rooms`` draws a room,
   ``lb.dispatch`` posts it to both legs.
2. ``front`` of each leg checks it and makes tokens of it; ``bootstrap.registry`` says where the
   prefill is.
3. ``decode.prealloc_queue`` reserves pages and a row and tells prefill where they are.
4. ``prefill.bootstrap_queue`` joins that with the request; ``prefill.waiting_queue`` batches it.
5. ``engine`` computes the prompt by chunks; ``prefill.inflight_queue`` sends each one through
   ``transfer`` as soon as it is there, the metadata row last.
6. ``decode.transfer_queue`` waits for the row, ``decode.prebuilt`` takes the first token from it.
7. ``decode.running_batch`` makes the other tokens; ``front`` makes text of them.
8. Whatever goes wrong has a name in ``protocol.causes`` and a line in ``runtime.recorder``.
"""
