"""Code that knows neither clicks nor tables: settings, files (locks, checksums), hashing, native_library, memory
(limits), pages (reused memory), console (commands' messages), packages (are all installed), text (of messages and
numbers), frames (results as data frames), signals, html/.
"""
