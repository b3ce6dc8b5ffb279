"""What makes a namespace a fabric switch."""
