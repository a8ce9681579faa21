"""The speed of scanrnn beside `lax.scan` and other libraries, if answers are right."""
