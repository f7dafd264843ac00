"""The Python model that runs TensorFlow in the process of an instance."""
