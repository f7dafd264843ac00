"""What backends share whose framework runs in this process, on the instance threads."""
