import { beforeEach } from 'vitest'
import { tellWhetherSecondTry } from './second-try.js'

beforeEach(({ task }) => tellWhetherSecondTry((task.result?.retryCount ?? 0) > 0))
