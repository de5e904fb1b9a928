"""The experiments that come with the package, as TOML files, and what the paper published about them."""
