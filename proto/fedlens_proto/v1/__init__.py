"""Generated messages of protocol version 1; `make proto` writes them."""
