package protocol

import "github.com/go-rlock/rlock/internal/wire"

// Scripts are the operations of one client, by the names of their files: "lock/acquire".
type Scripts map[string]*wire.Script
