"""Code that knows neither clicks nor tables: settings, yaml_settings (from files and arguments), files (locks,
checksums), hashing, native_library, pages (reused memory), console (commands' messages), packages (are all installed),
text (of messages and numbers), signals (that stop a program), process (its limits and its end), html/.
"""
