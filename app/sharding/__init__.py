"""The tower split over ranks on a CPU, over MPI: who holds what, and what is sent where (docs/parallel.md)."""
