"""The protocol over gRPC: the same models, queue and figures as over HTTP."""
