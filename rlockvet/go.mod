module github.com/go-rlock/rlock/rlockvet

go 1.25.0

require (
	github.com/golangci/plugin-module-register v0.1.2
	golang.org/x/tools v0.49.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/redis/go-redis/v9 v9.22.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

require (
	github.com/go-rlock/rlock v0.0.0
	golang.org/x/mod v0.39.0
	golang.org/x/sync v0.22.0 // indirect
)

replace github.com/go-rlock/rlock => ..
