from as_a_user import here, no_picture, one_thread, picture

__all__ = ["here", "no_picture", "one_thread", "picture"]
