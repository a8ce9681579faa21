"""What the site needs beside Sphinx: one small extension a file."""
