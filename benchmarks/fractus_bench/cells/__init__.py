"""The cells' functions, a module for each group; `fractus_bench.groups` lists them."""
