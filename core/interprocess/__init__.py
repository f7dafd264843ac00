"""What processes of one server exchange data with: frames on a socket, and shared memory."""
