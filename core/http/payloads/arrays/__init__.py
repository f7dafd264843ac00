"""Binary bodies: numpy's npy and npz files, sparse matrices and raw bytes."""
