import { constants } from 'node:fs'
import { access, mkdir, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { type BrowserContext, chromium, type Page } from 'playwright-core'

/** Debian's chromium in a container: no sandbox, no GPU, nothing that calls out. */
const FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
]
/** For hangs: the first page of a cold browser on a busy machine takes seconds. */
const WAIT_LIMIT_MS = 90_000

/** The UI asks the workflow for its current details only when told to. */
const REFRESH_EVERY_MS = 3_000
const LOOK_EVERY_MS = 100

/** What a page showed: its visible text, that inside frames too, and a picture of it for a human. */
export interface PageView {
  url: string
  text: string
  screenshotPath: string
}

export interface TemporalUi {
  /**
   * Opens the "User Metadata" tab of the workflow's latest run. There, and only there, the UI shows the
   * current details (Markdown that the workflow writes; a worker must be alive to answer), beside the
   * static summary and details and the summaries of timers, activities and children.
   * Asks again until `waitForText` (default: the heading) is shown; throws with the text it saw instead.
   */
  openWorkflow(uiUrl: string, namespace: string, workflowId: string, waitForText?: string): Promise<PageView>
  /** any page, once it shows the text */
  openPage(url: string, waitForText: string): Promise<PageView>
  close(): Promise<void>
}

/** @throws Error that names the package to install */
export async function chromiumPath(env: NodeJS.ProcessEnv = process.env): Promise<string> {
  for (const folder of (env.PATH ?? '').split(delimiter).filter(Boolean)) {
    const path = join(folder, 'chromium')
    try {
      await access(path, constants.X_OK)
      return path
    } catch {
      // The next folder.
    }
  }
  throw new Error(
    'No `chromium` on PATH, so the pages of the Temporal UI cannot be tested. On Debian: apt-get install chromium',
  )
}

/**
 * Starts a headless Chromium with a new profile; `close` removes it.
 * @param screenshotFolder keeps the pictures; created
 */
export async function openTemporalUi(screenshotFolder: string): Promise<TemporalUi> {
  const executablePath = await chromiumPath()
  const profile = await mkdtemp(join(tmpdir(), 'firepool-chromium-'))
  await mkdir(screenshotFolder, { recursive: true })
  const context = await chromium.launchPersistentContext(profile, {
    executablePath,
    args: FLAGS,
    headless: true,
    viewport: { width: 1400, height: 1100 },
    timeout: WAIT_LIMIT_MS,
  })
  const page = context.pages()[0] ?? (await context.newPage())
  page.setDefaultTimeout(WAIT_LIMIT_MS)
  let pictures = 0
  const view = async (waitForText: string): Promise<PageView> => {
    const text = await untilText(page, waitForText)
    pictures += 1
    const name = `${String(pictures).padStart(2, '0')}-${new URL(page.url()).pathname.replace(/[^\w]+/g, '-').slice(-80)}.png`
    const screenshotPath = join(screenshotFolder, name)
    await page.screenshot({ path: screenshotPath })
    return { url: page.url(), text, screenshotPath }
  }
  return {
    async openWorkflow(uiUrl, namespace, workflowId, waitForText = 'Current Details') {
      const path = `namespaces/${encodeURIComponent(namespace)}/workflows/${encodeURIComponent(workflowId)}`
      await page.goto(`${uiUrl}/${path}`)
      // The UI finds the latest run and goes to its history; the tab's own address needs the run id.
      await page
        .getByRole('link', { name: 'User Metadata' })
        .or(page.getByRole('tab', { name: 'User Metadata' }))
        .first()
        .click()
      return view(waitForText)
    },
    async openPage(url, waitForText) {
      await page.goto(url)
      return view(waitForText)
    },
    close: () => closeAll(context, profile),
  }
}

async function closeAll(context: BrowserContext, profile: string): Promise<void> {
  await context.close()
  await rm(profile, { recursive: true, force: true, maxRetries: 5 })
}

async function untilText(page: Page, expected: string): Promise<string> {
  const startedMs = performance.now()
  let refreshedMs = startedMs
  for (;;) {
    const text = await visibleText(page)
    if (text.includes(expected)) return text
    const nowMs = performance.now()
    if (nowMs - startedMs > WAIT_LIMIT_MS) {
      throw new Error(`${page.url()} never showed ${JSON.stringify(expected)}; it shows:\n${text}`)
    }
    if (nowMs - refreshedMs > REFRESH_EVERY_MS) {
      refreshedMs = nowMs
      await page.keyboard.press('r')
    }
    await page.waitForTimeout(LOOK_EVERY_MS)
  }
}

/** The UI renders Markdown in frames of their own. */
async function visibleText(page: Page): Promise<string> {
  const texts = await Promise.all(
    page.frames().map(async (frame) => {
      try {
        // biome-ignore lint/performance/useDomNodeTextContent: what a user sees, not what a script holds
        return await frame.locator('body').innerText({ timeout: 2_000 })
      } catch {
        // A frame that is being replaced; the next look finds its successor.
        return ''
      }
    }),
  )
  return texts.join('\n')
}
