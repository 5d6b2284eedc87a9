"""From values to ids: vocabulary (which value has which id), fit, given, extended, file, lookup_file;
row_encoder (in workers); encoder is the door for raw lines outside of a preparation.
"""
