"""The one exception that a user is meant to read."""


class UserError(ValueError):
  """Bad input. The message names the file or field, and how to mend it.

  Drivers print the message as one line and exit with status 2; everything else
  that escapes is a bug and keeps its traceback.
  """
