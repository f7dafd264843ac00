"""What runs in the process of an instance: a Python model that runs TensorFlow."""
