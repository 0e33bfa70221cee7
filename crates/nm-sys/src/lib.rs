//! Safe calls onto the kernel, one family a file.
