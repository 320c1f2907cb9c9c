"""A pool of two stores: a fast one for jobs that are due soon, and a disk for the others."""
