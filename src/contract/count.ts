/** A number with its noun: '1 lease', '2 leases'. */
export function counted(count: number | string | boolean, noun: string): string {
  return Number(count) === 1 ? `${count} ${noun}` : `${count} ${noun}s`
}
