from as_a_user import here, no_picture, one_thread, picture
from in_this_process import in_process

__all__ = ["here", "in_process", "no_picture", "one_thread", "picture"]
