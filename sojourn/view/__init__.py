"""The viewer: pages made on the server from run folders, which it only reads."""
