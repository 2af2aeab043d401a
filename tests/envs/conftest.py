from as_a_user import no_picture, one_thread, picture

__all__ = ["no_picture", "one_thread", "picture"]
