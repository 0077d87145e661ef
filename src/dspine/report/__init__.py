"""The report room: from files of results to pictures and one page that anybody can open.

Nothing is measured here and no model is loaded: files describe themselves.
"""
