"""Tables and folders of users, read as meant or refused."""
