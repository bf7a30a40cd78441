module github.com/go-rlock/rlock/check

go 1.25.0

require (
	github.com/anishathalye/porcupine v1.3.1
	golang.org/x/sys v0.30.0
)

replace github.com/go-rlock/rlock => ../
