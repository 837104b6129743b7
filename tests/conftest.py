"""Makes this folder importable: modules beside this one (`outputs`) are shared by the tests of all folders."""
