"""What the engine and the front ends cost a request, core by core, and how far one engine reaches."""
